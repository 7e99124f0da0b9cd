"""How devices share a sequence: Ulysses over process groups that can be interrupted."""
