"""What the program prints, and how it ends."""
