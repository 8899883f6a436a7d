"""What the operating system and the interpreter give a process: threads, files, memory, CPU time."""
