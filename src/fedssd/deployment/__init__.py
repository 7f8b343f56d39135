"""Real federations: the apps of server and nodes, their samples and certificates, and a trial on one machine."""
