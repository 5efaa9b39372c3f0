"""The snapshots of many ranks as one dataset of tables: collecting them, and reports of them."""
