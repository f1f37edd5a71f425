"""`python -m demur`: the command line, where the script is not on the path."""

from demur.cli import main

if __name__ == "__main__":  # workers import this module by another name
    main()
