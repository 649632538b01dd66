"""``python -m mainspring``: the command line, for processes that start each other."""

from mainspring.cli import main

if __name__ == "__main__":
    main()
