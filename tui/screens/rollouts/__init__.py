"""The screen of questions and answers."""
