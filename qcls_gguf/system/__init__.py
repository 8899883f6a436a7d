"""What the operating system gives a process: threads, CPU time, memory, folders."""
