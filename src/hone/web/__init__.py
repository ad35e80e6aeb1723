"""Page of runs in the browser, `hone watch`: it reads run folders and changes nothing below them."""
