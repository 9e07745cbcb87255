"""Long runs that look for what no single test finds: hostile clients, hostile bytes. Each is a command of its own."""
