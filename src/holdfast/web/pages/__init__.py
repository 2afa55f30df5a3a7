"""The dashboard's pages: server-rendered, readable without JavaScript, which only keeps them up to date."""
