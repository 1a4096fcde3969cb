"""`python -m codecl` is `codecl`."""

from codecl.cli import main

main()
