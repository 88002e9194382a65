"""Small changes of the code, made by a program: each is noticed by a test of its room, or was judged."""
