"""Where spot instances come from: what offers them, asks for more and takes them back, one file a provider."""
