# SPDX-License-Identifier: Apache-2.0
# Run as the pages are installed: what a link leads to that is not installed (benchmarks, tests) is named, and not linked to.
#
#   cmake -D DOCS=<the installed folder> -P WeftDocs.cmake

# Only this project's: the folder may be one for all packages.
file(GLOB_RECURSE pages ${DOCS}/docs/*.md ${DOCS}/examples/*.md ${DOCS}/transports/*.md ${DOCS}/gpu/*.md)
list(APPEND pages ${DOCS}/README.md ${DOCS}/ARCHITECTURE.md ${DOCS}/CONTRIBUTING.md)
foreach(page IN LISTS pages)
    file(READ ${page} text)
    get_filename_component(folder ${page} DIRECTORY)
    string(REGEX MATCHALL "\\([^][() ;]+\\)" links "${text}")
    foreach(link IN LISTS links)
        string(REGEX REPLACE "^\\(([^#]*).*\\)$" "\\1" target "${link}")
        if(target AND NOT target MATCHES "^[a-z]+:" AND NOT EXISTS "${folder}/${target}")
            string(REPLACE "]${link}" "]" text "${text}")
        endif()
    endforeach()
    file(WRITE ${page} "${text}")
endforeach()
