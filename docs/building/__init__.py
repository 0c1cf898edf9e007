"""What the pages are built with."""
