"""One module per API: its request, its response, and their parts. Fields have the names of the Kafka protocol."""
