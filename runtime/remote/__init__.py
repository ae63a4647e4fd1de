"""What backends on other machines share: HTTP, limits of a step, and a session's life."""
