from dalle_lib.cli import main

main()
