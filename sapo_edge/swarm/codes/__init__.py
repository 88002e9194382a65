"""Short codes in place of invites: as people say them, the exchange of keys, and meeting places for both sides."""
