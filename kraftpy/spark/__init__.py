"""Reading from PySpark. Imports the client only."""
