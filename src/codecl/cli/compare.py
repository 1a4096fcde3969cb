"""`codecl compare`."""
