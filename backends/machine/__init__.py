"""What backends ask about the machine and its memory."""
