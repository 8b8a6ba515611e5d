"""The shell: together with the client, the only package that has tasks, sockets and files."""
