"""`python -m torchcaps` is the command `torchcaps`."""

from torchcaps.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
