"""What judged images come to, and runs that were done again."""
