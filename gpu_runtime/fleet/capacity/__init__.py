"""Providers of spot instances, one per file: each offers instances, gets more and takes them back."""
