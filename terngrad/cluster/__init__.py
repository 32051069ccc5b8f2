"""How the processes of a training meet, and how they notice that one is lost."""
