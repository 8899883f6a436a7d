#!python
# The command `qcls-gguf`, installed as it is: the script that an installer makes imports more before it comes to us,
# and Ctrl-C there prints a traceback.
import os

try:
    from qcls_gguf.cli import main
except KeyboardInterrupt:
    os.write(2, b"qcls-gguf: interrupted\n")
    os._exit(130)
if __name__ == "__main__":
    main()
