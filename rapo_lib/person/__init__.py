"""The inside of the embedded seeker: what a person perceives in a reply, what it means to them, how they say it."""
