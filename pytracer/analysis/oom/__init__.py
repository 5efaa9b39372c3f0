"""Why memory ran out, and what would have helped."""
