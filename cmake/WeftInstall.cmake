# SPDX-License-Identifier: Apache-2.0
# Headers, libraries, and what find_package(weft) and pkg-config need to find them.
include(CMakePackageConfigHelpers)

set(weft_cmake_dir ${CMAKE_INSTALL_LIBDIR}/cmake/weft)
set(weft_targets "")
foreach(target IN ITEMS weft weft_static)
    if(TARGET ${target})
        list(APPEND weft_targets ${target})
    endif()
endforeach()

install(TARGETS ${weft_targets} EXPORT weft-targets
        LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY core/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING
        PATTERN "*.h")
install(EXPORT weft-targets NAMESPACE weft:: DESTINATION ${weft_cmake_dir})

configure_package_config_file(cmake/weft-config.cmake.in ${PROJECT_BINARY_DIR}/weft-config.cmake
                              INSTALL_DESTINATION ${weft_cmake_dir})
# Before 1.0 a minor version may change anything.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/weft-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/weft-config.cmake
        ${PROJECT_BINARY_DIR}/weft-config-version.cmake DESTINATION ${weft_cmake_dir})

# ${pcfiledir}/../.. is the prefix: the tree may be moved after it was installed.
file(RELATIVE_PATH weft_pc_prefix /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
configure_file(cmake/weft.pc.in ${PROJECT_BINARY_DIR}/weft.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/weft.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)

# The manual pages name these pages, which quote code and link to examples.
install(DIRECTORY docs/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/docs FILES_MATCHING PATTERN "*.md" PATTERN "code/*.c"
        PATTERN man EXCLUDE)
install(DIRECTORY examples/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples FILES_MATCHING PATTERN "*.[ch]" PATTERN "*.md")
foreach(folder transports gpu)
    install(DIRECTORY ${folder}/ DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder} FILES_MATCHING PATTERN "README.md"
            PATTERN kernels EXCLUDE PATTERN vendor EXCLUDE)
endforeach()
install(FILES README.md ARCHITECTURE.md CONTRIBUTING.md LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
# Behind all of them: only now it can be said which links lead nowhere.
install(CODE "
    set(docs \"${CMAKE_INSTALL_DOCDIR}\")
    if(NOT IS_ABSOLUTE \"\${docs}\")
        set(docs \"\${CMAKE_INSTALL_PREFIX}/\${docs}\")
    endif()
    execute_process(COMMAND \"\${CMAKE_COMMAND}\" -D \"DOCS=\$ENV{DESTDIR}\${docs}\" -P \"${PROJECT_SOURCE_DIR}/cmake/WeftDocs.cmake\"
                    COMMAND_ERROR_IS_FATAL ANY)")
