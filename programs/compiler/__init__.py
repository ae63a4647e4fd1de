"""From Python source to a StateGraph."""
