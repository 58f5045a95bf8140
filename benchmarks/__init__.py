"""What maintains this repository's own results pages; not part of the wheel."""
