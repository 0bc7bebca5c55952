# A recipe in Latin-1: café.
