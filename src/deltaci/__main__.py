"""Run the command line as `python -m deltaci`."""

from deltaci.cli.app import main

if __name__ == "__main__":
    main()
