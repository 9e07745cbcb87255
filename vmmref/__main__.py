"""`python -m vmmref` is the command `vmmref`."""

from vmmref.cli import main

if __name__ == "__main__":
    main()
