"""How strangers of one swarm meet: through the Mainline DHT of BitTorrent (BEP 5), in a process of its own."""
