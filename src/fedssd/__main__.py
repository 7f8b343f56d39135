"""``python -m fedssd`` is the command line."""

from fedssd.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
