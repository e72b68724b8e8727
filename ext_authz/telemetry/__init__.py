"""From metrics pages to dated samples."""
