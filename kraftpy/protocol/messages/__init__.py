"""One module per API: its request, its response, and what they carry. Field names are those of the Kafka protocol."""
