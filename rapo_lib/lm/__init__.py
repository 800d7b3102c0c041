"""Language models in the roles of seeker, judge, selector and critic, and whether they are good enough for them."""
