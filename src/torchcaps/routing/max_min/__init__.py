"""Max-min routing (Zhao, Kleinhans, Sandhu, Patel, Unnikrishnan 2019)."""
