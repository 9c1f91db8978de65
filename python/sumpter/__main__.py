"""`python -m sumpter` is the `sumpter` command."""

from sumpter.cli import main

if __name__ == "__main__":
    main()
