"""The shell: the only package, with the client, that has tasks, sockets and files."""
