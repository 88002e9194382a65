"""`sapo api`: what was trained here, for programs that speak OpenAI's protocol."""
