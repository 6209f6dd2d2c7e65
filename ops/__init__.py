"""What watches, tunes and rehearses the fleet: `ops …`."""
