"""The dashboard's pages: rendered on the server and usable without JavaScript, which only keeps them up to date."""
