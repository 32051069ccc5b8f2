"""From one stored image to one input of a net, a file for each family of nets."""
