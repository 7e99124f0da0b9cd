"""What a device costs."""
