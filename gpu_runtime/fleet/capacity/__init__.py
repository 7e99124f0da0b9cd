"""Where spot instances come from, one file a provider: it offers them, gets more and takes them back."""
